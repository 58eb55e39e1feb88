"""The promises of every method as plain functions, for the tests of other people's packages.

    from equipoise.testing import check_method

    def test_it_keeps_every_promise():
        check_method(MySync(pull=0.5))

`PROMISES` lists them by axis, for a test of each. No test framework is needed.
"""

from .promises import PROMISES as PROMISES
from .promises import check_attach as check_attach
from .promises import check_attach_resume as check_attach_resume
from .promises import check_cost as check_cost
from .promises import check_deterministic as check_deterministic
from .promises import check_every_example as check_every_example
from .promises import check_graph as check_graph
from .promises import check_metadata as check_metadata
from .promises import check_method as check_method
from .promises import check_one_worker as check_one_worker
from .promises import check_options as check_options
from .promises import check_processes as check_processes
from .promises import check_repr as check_repr
from .promises import check_resume as check_resume
from .promises import check_state as check_state
from .promises import check_trains as check_trains
