"""Rounding to floating-point formats of any width, by `GenericFloat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu.ops.f8_ops import exponent_of, scaled

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["GenericFloat"]

_ROUND_MODES = ("RZ", "RN", "RA", "RU", "RD", "SR")
_DENSITIES = ("Invalid", "Uniform", "Normal", "TruncatedNormal", "Bernoulli")
_TYPES = {"fp16": tf.float16, "fp32": tf.float32}


def _check_type(argument: str, value: object) -> None:
    if value not in ("auto", *_TYPES):
        raise RuntimeError(f"`{argument}` must be 'auto', 'fp16' or 'fp32', but is {value!r}")


class GenericFloat:
    """A floating-point format: a sign, `exp` bits of exponent and `man` bits of fraction.

        gfloat = GenericFloat(man=3, exp=4, bias=7)
        rounded = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, round_mode="RN"))

    Formats of less than 8 bits without the sign are packed as int8, some of less than 16 bits as int16. All other formats
    are stored unpacked, as float16 or float32. The gradient of a cast to floats is the identity. A cast to packed integers
    has no gradient.
    """

    def __init__(
        self,
        man: int = 10,
        exp: int = 5,
        bias: int = 15,
        en_denorm: bool = True,
        en_inf: bool = True,
        calc_type: str = "auto",
        name: str | None = None,
    ) -> None:
        """Creates the format.

        Args:
          man: The bits of the fraction, 0 to 23.
          exp: The bits of the exponent, 1 to 8.
          bias: The bias of the stored exponent, -126 to 127. The smallest normal value is `2 ** (1 - bias)`.
          en_denorm: Whether the format has subnormal values. Otherwise smaller values are rounded to the smallest normal
            value or to zero.
          en_inf: Whether the largest exponent encodes infinity and NaN.
          calc_type: The type of the hardware's arithmetic: "auto", "fp16" or "fp32". The emulator computes in float32.
          name: A name for the operations.

        Raises:
          ValueError: float32 cannot represent a format of this `man`, `exp` or `bias`.
          TypeError: A flag is not a bool.
          RuntimeError: `calc_type` is unsupported, or float16 cannot compute the format.
        """
        faults = Faults()
        for argument, value, low, high in (("man", man, 0, 23), ("exp", exp, 1, 8), ("bias", bias, -126, 127)):
            if not is_int(value) or not low <= value <= high:
                faults.add(ValueError, f"`{argument}` must be an int from {low} to {high}, but is {value!r}")
        note_bool("en_denorm", en_denorm, faults)
        note_bool("en_inf", en_inf, faults)
        faults.raise_any()
        self._man, self._exp, self._bias = man, exp, bias
        self._en_denorm, self._en_inf = en_denorm, en_inf
        self._name = name
        self._highest = (1 << exp) - 1 - en_inf - bias  # The exponent of the largest values.
        if self._highest > 127:
            raise ValueError(f"`bias={bias}` makes the largest exponent {self._highest}, and float32 has at most 127")
        self._wide = exp > 5 or man > 10 or (exp == 5 and man == 10)
        _check_type("calc_type", calc_type)
        if self._wide and calc_type == "fp16":
            raise RuntimeError("`calc_type='fp16'` cannot compute a format that is not within float16: use 'fp32'")
        self._calc = _TYPES.get(calc_type, tf.float32 if self._wide else tf.float16)
        self._storage, self._native = self._types()

    def _types(self) -> tuple[tf.DType, tf.DType]:
        """Returns the dtype in which values are stored, and the dtype of the unpacked values."""
        bits = self._man + self._exp
        if not self._wide:
            # Formats whose range exceeds float16's are computed in float16 with a scale, and unpacked to float32.
            native = tf.float16 if self._highest <= 15 and 1 - self._bias - self._man >= -24 else tf.float32
            return (tf.int8 if bits < 8 else native), native
        if self._exp == 5 and self._man == 10:
            return tf.float16, tf.float16 if self._en_inf else tf.float32
        return (tf.int8 if bits < 8 else tf.int16 if bits < 16 else tf.float32), tf.float32

    def cast_native_to_gfloat(
        self,
        inputs: TensorLike,
        en_nanoo: bool = True,
        round_mode: str = "RN",
        sr_density: str = "Invalid",
        sr_bits: int = 23,
        sr_norm_offset: float = 0.0,
        sr_norm_scale: float = 1.0,
        sr_norm_min: float = -0.5,
        sr_norm_max: float = 0.5,
        sr_prob: float = 1.0,
        storage_type: str = "auto",
    ) -> tf.Tensor:
        """Rounds a tensor to the format.

        Args:
          inputs: A tensor of floats.
          en_nanoo: True if overflows become NaN; False if they become the largest value.
          round_mode: The rounding: "RZ" towards zero; "RN" to nearest, ties to even; "RA" to nearest, ties away from zero;
            "RU" up; "RD" down; "SR" stochastic.
          sr_density: The noise of "SR". "Uniform", the default, adds noise from 0 to 1 to the fraction, and rounds down.
            "Normal" and "TruncatedNormal" add noise, and round to nearest. "Bernoulli" adds no noise. It rounds towards
            zero with the probability `sr_prob`, and otherwise away from zero.
          sr_bits: The bits of uniform noise, 1 to 23.
          sr_norm_offset: The mean of normal noise.
          sr_norm_scale: The standard deviation of normal noise.
          sr_norm_min: The lower limit of truncated noise.
          sr_norm_max: The upper limit of truncated noise.
          sr_prob: The probability that "Bernoulli" rounds towards zero.
          storage_type: "auto"; or "fp16" or "fp32" for unpacked values of that type.

        Returns:
          A tensor of the shape of `inputs`, of the dtype in which the format is stored.

        Raises:
          RuntimeWarning: `en_nanoo` is True, but the format has no NaN.
          ValueError: `round_mode`, `sr_density` or `sr_bits` is unsupported.
          RuntimeError: `storage_type` is unsupported.
        """
        if en_nanoo and not self._en_inf:
            raise RuntimeWarning(
                "the format has no infinity and no NaN (`en_inf=False`): overflows become the largest value, infinity and"
                " NaN become zero. Pass `en_nanoo=False`"
            )
        faults = Faults()
        if round_mode not in _ROUND_MODES:
            faults.add(ValueError, f"`round_mode` must be one of {', '.join(_ROUND_MODES)}, but is {round_mode!r}")
        if sr_density not in _DENSITIES:
            faults.add(ValueError, f"`sr_density` must be one of {', '.join(_DENSITIES)}, but is {sr_density!r}")
        if not is_int(sr_bits) or not 1 <= sr_bits <= 23:
            faults.add(ValueError, f"`sr_bits` must be an int from 1 to 23, but is {sr_bits!r}")
        _check_type("storage_type", storage_type)
        faults.raise_any()

        def stochastic(fraction: tf.Tensor) -> tf.Tensor:
            if sr_density == "Bernoulli":
                return tf.where(
                    tf.random.uniform(tf.shape(fraction)) < sr_prob, tf.floor(fraction), tf.math.ceil(fraction)
                )
            if sr_density in ("Normal", "TruncatedNormal"):
                noise = tf.random.normal(tf.shape(fraction), sr_norm_offset, sr_norm_scale)
                if sr_density == "TruncatedNormal":
                    noise = tf.clip_by_value(noise, sr_norm_min, sr_norm_max)
                return tf.maximum(tf.round(fraction + noise), 0)
            steps = 1 << sr_bits
            return tf.floor(fraction + tf.floor(tf.random.uniform(tf.shape(fraction)) * steps) / steps)

        with tf.name_scope(self._name or "cast_native_to_gfloat"):
            storage = _TYPES.get(storage_type, self._storage)

            def rounded(values: tf.Tensor) -> tf.Tensor:
                return self._rounded(tf.cast(values, tf.float32), round_mode, stochastic, en_nanoo)

            def straight_through(values: tf.Tensor) -> Any:
                return tf.cast(rounded(values), storage), lambda upstream: tf.cast(upstream, values.dtype)

            values = tf.convert_to_tensor(inputs)
            cast: Any = tf.custom_gradient(straight_through)
            return cast(values) if storage.is_floating else self._packed(rounded(values), storage)

    def cast_gfloat_to_native(self, inputs: TensorLike, storage_type: str = "auto") -> tf.Tensor:
        """Unpacks a tensor that `cast_native_to_gfloat` returned. Returns unpacked `inputs` unchanged.

        `storage_type` is the type of the result: "fp16", "fp32", or "auto" for the smallest type that holds the format.

        Raises:
          RuntimeError: `storage_type` is unsupported.
        """
        _check_type("storage_type", storage_type)
        values = tf.convert_to_tensor(inputs)
        if values.dtype.is_floating:
            return values
        with tf.name_scope(self._name or "cast_gfloat_to_native"):
            code = tf.cast(values, tf.int32)
            unit = 1 << self._man
            magnitude = tf.bitwise.bitwise_and(code, (unit << self._exp) - 1)
            exponent = tf.bitwise.right_shift(magnitude, self._man)
            fraction = tf.bitwise.bitwise_and(magnitude, unit - 1) + tf.where(exponent > 0, unit, 0)
            number = scaled(tf.cast(fraction, tf.float32), tf.maximum(exponent, 1) - self._bias - self._man)
            number = tf.where(code < 0, -number, number)
            if self._en_inf:
                number = tf.where(tf.equal(exponent, (1 << self._exp) - 1), float("nan"), number)
            return tf.cast(number, _TYPES.get(storage_type, self._native))

    def get_cast_native_to_gfloat_fun(self, **options: Any) -> Callable[[TensorLike], tf.Tensor]:
        """Returns a function that calls `cast_native_to_gfloat` on a tensor with these options."""
        return lambda inputs: self.cast_native_to_gfloat(inputs, **options)

    def get_cast_gfloat_to_native_fun(self, storage_type: str = "auto") -> Callable[[TensorLike], tf.Tensor]:
        """Returns a function that calls `cast_gfloat_to_native` on a tensor with this `storage_type`."""
        return lambda inputs: self.cast_gfloat_to_native(inputs, storage_type)

    def get_gfloat_storage_dtype(self) -> tf.DType:
        """Returns the dtype in which values are stored."""
        return self._storage

    def get_gfloat_calc_dtype(self) -> tf.DType:
        """Returns the dtype of the hardware's arithmetic."""
        return self._calc

    def get_gfloat_native_dtype(self) -> tf.DType:
        """Returns the dtype of unpacked values."""
        return self._native

    def get_mantissa_size(self) -> int:
        """Returns the number of bits of the fraction."""
        return self._man

    def get_exponent_size(self) -> int:
        """Returns the number of bits of the exponent."""
        return self._exp

    def get_exponent_bias(self) -> int:
        """Returns the bias of the exponent."""
        return self._bias

    def get_en_denorms(self) -> bool:
        """Returns True if the format has subnormal values."""
        return self._en_denorm

    def get_en_inf(self) -> bool:
        """Returns True if the format has infinity and NaN."""
        return self._en_inf

    def is_packed_float(self) -> bool:
        """Returns True if values are stored as integers."""
        return not self._storage.is_floating

    def _rounded(
        self, values: tf.Tensor, mode: str, stochastic: Callable[[tf.Tensor], tf.Tensor], en_nanoo: bool
    ) -> tf.Tensor:
        """Rounds to values of the format, as float32.

        Each value becomes a multiple of its unit in the last place, `2 ** step` with `step = exponent - man`. The exponent
        is at least that of the smallest normal value, which gives subnormal values. Without these, the unit below the
        smallest normal value is that value itself. Example for `man=1`: 1.3 is 2.6 units of 0.5, which rounds to 3: 1.5.
        """
        magnitude = tf.abs(values)
        lowest = 1 - self._bias
        exponent = tf.clip_by_value(exponent_of(magnitude), lowest, 127)
        step = exponent - self._man
        if not self._en_denorm:
            step = tf.where(magnitude < scaled(tf.ones([]), tf.constant(lowest)), lowest, step)
        fraction = scaled(magnitude, -step)
        is_negative = values < 0
        roundings: dict[str, Callable[[], tf.Tensor]] = {
            "RZ": lambda: tf.floor(fraction),
            "RN": lambda: tf.round(fraction),
            "RA": lambda: tf.floor(fraction + 0.5),
            "RU": lambda: tf.where(is_negative, tf.floor(fraction), tf.math.ceil(fraction)),
            "RD": lambda: tf.where(is_negative, tf.math.ceil(fraction), tf.floor(fraction)),
            "SR": lambda: stochastic(fraction),
        }
        result = scaled(roundings[mode](), step)
        largest = float((2 - 2.0**-self._man) * 2.0**self._highest)
        result = tf.where(result > largest, float("nan") if en_nanoo else largest, result)
        is_finite = tf.math.is_finite(values)
        if not self._en_inf:
            result = tf.where(is_finite, result, 0)
        else:
            rounded_infinity = float("nan") if en_nanoo else largest
            result = tf.where(is_finite, result, tf.where(tf.math.is_nan(values), float("nan"), rounded_infinity))
        return tf.where(is_negative, -result, result)

    def _packed(self, values: tf.Tensor, storage: tf.DType) -> tf.Tensor:
        """Packs values of the format as integers: the sign in the top bit, exponent and fraction in the lowest bits."""
        magnitude = tf.abs(values)
        exponent = tf.maximum(exponent_of(magnitude), 1 - self._bias)
        fraction = tf.cast(scaled(magnitude, self._man - exponent), tf.int32)
        code = tf.bitwise.left_shift(exponent + self._bias - 1, self._man) + fraction
        code = tf.where(tf.math.is_nan(values), (1 << (self._exp + self._man)) - 1, code)
        return tf.cast(tf.where(values < 0, code + int(storage.min), code), storage)
