# Written by: python -m equipoise.config.stubs
from .base import Wire as Wire
from .bfloat16 import BFloat16 as BFloat16
from .float16 import Float16 as Float16
from .float32 import Float32 as Float32
