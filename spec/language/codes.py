"""Every problem code, with what ``kvfsm explain E204`` prints. Codes keep their meaning; none is ever used again.

E1xx YAML and shape, E2xx names, types and expressions, E3xx what a machine must keep, E4xx protocols, E5xx profiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from .codes_machine import MACHINE_CODES
from .codes_names import NAMES_CODES
from .codes_profile import PROFILE_CODES
from .codes_protocol import PROTOCOL_CODES
from .codes_shape import SHAPE_CODES
from .problems import CodeInfo

CODES: Mapping[str, CodeInfo] = {
    **SHAPE_CODES,
    **NAMES_CODES,
    **MACHINE_CODES,
    **PROTOCOL_CODES,
    **PROFILE_CODES,
}
