"""Message transforms of topics and subscriptions (protocol 1.14.2). Checked, kept and given back.

They are not run yet. Whoever runs them begins here: those of a topic apply in their order before its messages are
stored (`Publisher.publish`), those of a subscription before a delivery is encoded; what is `disabled` is passed over,
and a function that gives null drops the message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from heliograph.errors import InvalidArgument

TRANSFORMS_MAX = 5
CODE_BYTES_MAX = 20 * 1024

_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def check(transforms: Sequence[Any]) -> None:
    """The `message_transforms` of a resource.

    Raises:
        InvalidArgument: too many, or one breaks its rule.
    """
    if len(transforms) > TRANSFORMS_MAX:
        raise InvalidArgument(f"A resource has at most {TRANSFORMS_MAX} message transforms, not {len(transforms)}.")
    functions: set[str] = set()
    for transform in transforms:
        kind = transform.WhichOneof("transform")
        if kind is None:
            raise InvalidArgument("A message transform must say what it does.")
        _CHECKS[kind](getattr(transform, kind))
        if kind == "javascript_udf":
            name = transform.javascript_udf.function_name
            if name in functions:
                raise InvalidArgument(f"Several message transforms have the function_name {name}.")
            functions.add(name)


def _check_javascript(udf: Any) -> None:
    name, code = udf.function_name, udf.code
    if not _IDENTIFIER.fullmatch(name):
        raise InvalidArgument(f"Invalid function_name given (function_name={name}).")
    if len(code.encode()) > CODE_BYTES_MAX:
        raise InvalidArgument(f"The code of a JavaScript function has at most {CODE_BYTES_MAX} bytes.")
    if not re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", code):
        raise InvalidArgument(f"The code of the JavaScript function does not define {name}.")


def _check_inference(inference: Any) -> None:
    if not inference.endpoint:
        raise InvalidArgument("An AI inference must name its endpoint.")


def _check_compression(compression: Any) -> None:
    if not compression.compression_algorithm or not compression.compression_mode:
        raise InvalidArgument("A compression must say its algorithm and its mode.")


_CHECKS = {
    "javascript_udf": _check_javascript,
    "ai_inference": _check_inference,
    "compression": _check_compression,
}
