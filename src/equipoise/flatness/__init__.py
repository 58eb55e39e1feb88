"""How flat is the loss around a model? For any model, loss and data; in eval mode, on fixed data, with error bars."""

from .curvature import largest_eigenvalue as largest_eigenvalue
from .curvature import trace as trace
from .measure import Flatness as Flatness
from .measure import measure as measure
from .profile import Profile as Profile
from .profile import profile as profile
from .surface import Estimate as Estimate
from .surface import Surface as Surface
from .surface import gradient_norm as gradient_norm
