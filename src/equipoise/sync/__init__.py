"""What do workers exchange, and how do they combine it?"""

from .ad_psgd import ADPSGD as ADPSGD
from .all_reduce import AllReduce as AllReduce
from .base import Sync as Sync
from .d2 import D2 as D2
from .d_psgd import DPSGD as DPSGD
from .defacto import DeFacto as DeFacto
from .detag import DeTAG as DeTAG
from .diloco import DiLoCo as DiLoCo
from .dsgdm_n import DSGDmN as DSGDmN
from .dsgt import DSGT as DSGT
from .eamsgd import EAMSGD as EAMSGD
from .easgd import EASGD as EASGD
from .edm import EDM as EDM
from .k_gt import KGT as KGT
from .lgrawa import LGRAWA as LGRAWA
from .lsgd import LSGD as LSGD
from .matcha import MATCHA as MATCHA
from .mg_dsgd import MGDSGD as MGDSGD
from .mgrawa import MGRAWA as MGRAWA
from .none import NoSync as NoSync
from .periodic_average import PeriodicAverage as PeriodicAverage
from .qg_dsgdm import QGDSGDm as QGDSGDm
from .relay import RelaySGD as RelaySGD
from .sgp import SGP as SGP
from .slowmo import SlowMo as SlowMo
