"""Floating-point numbers of any width, as `GenericFloat` rounds to them."""

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
    """A format of floating-point numbers: a sign, `exp` bits of exponent and `man` bits of fraction.

        gfloat = GenericFloat(man=3, exp=4, bias=7)
        rounded = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, round_mode="RN"))

    Formats of less than 8 bits beside the sign are stored packed as int8, some of less than 16 as int16, all others as
    the numbers that they are, in float16 or float32. Gradients go straight through a cast to floats; none goes through
    integers.
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
        """Describes the format.

        Args:
          man: The bits of the fraction, 0 to 23.
          exp: The bits of the exponent, 1 to 8.
          bias: What the exponent is stored with; the smallest normal number is 2 to the power of `1 - bias`.
          en_denorm: Whether there are smaller numbers than that. Else what is smaller becomes it, or zero.
          en_inf: Whether the largest exponent stands for infinity and NaN.
          calc_type: What the hardware computes with: "auto", "fp16" or "fp32". Here it is float32.
          name: A name for the operations.

        Raises:
          ValueError: `man`, `exp` or `bias` is none that a float32 can stand for.
          TypeError: A flag is no bool.
          RuntimeError: There is no such `calc_type`, or float16 cannot compute the format.
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
        self._highest = (1 << exp) - 1 - en_inf - bias  # The exponent of the largest numbers.
        if self._highest > 127:
            raise ValueError(f"`bias={bias}` makes numbers of 2 to the power of {self._highest}, beyond float32's 127")
        self._wide = exp > 5 or man > 10 or (exp == 5 and man == 10)
        _check_type("calc_type", calc_type)
        if self._wide and calc_type == "fp16":
            raise RuntimeError("`calc_type='fp16'` cannot compute a format that is not within float16: use 'fp32'")
        self._calc = _TYPES.get(calc_type, tf.float32 if self._wide else tf.float16)
        self._storage, self._native = self._types()

    def _types(self) -> tuple[tf.DType, tf.DType]:
        """Returns the types in which numbers are stored, and unpacked."""
        bits = self._man + self._exp
        if not self._wide:
            # The machine scales formats that reach further than float16.
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
        """Rounds numbers to the format.

        Args:
          inputs: A tensor of floats.
          en_nanoo: Whether what is too large becomes NaN. Else it becomes the largest number.
          round_mode: Where numbers between two go: "RZ" towards zero, "RN" to the nearest, of two the even one, "RA" to the
            nearest, of two the one further from zero, "RU" up, "RD" down, "SR" by chance.
          sr_density: What is added to the fraction with "SR" before it is cut off: "Uniform" noise from 0 to 1, the
            default; "Normal", or "TruncatedNormal" noise, before it is rounded to the nearest; or "Bernoulli": none, and
            all but `sr_prob` of the numbers go up.
          sr_bits: How many bits uniform noise has, 1 to 23.
          sr_norm_offset: The mean of normal noise.
          sr_norm_scale: Its standard deviation.
          sr_norm_min: The least truncated noise.
          sr_norm_max: The most.
          sr_prob: The chance that "Bernoulli" rounds towards zero.
          storage_type: "auto"; or "fp16" or "fp32" for numbers of that type that are not packed.

        Returns:
          A tensor of the shape of `inputs`, of the type in which the format is stored.

        Raises:
          RuntimeWarning: `en_nanoo` is asked for of a format that has no NaN.
          ValueError: `round_mode`, `sr_density` or `sr_bits` is none of those.
          RuntimeError: There is no such `storage_type`.
        """
        if en_nanoo and not self._en_inf:
            raise RuntimeWarning(
                "the format has no infinity and no NaN (`en_inf=False`): what is too large becomes the largest number, and"
                " both become zero. Say so by `en_nanoo=False`"
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

        def noisy(fraction: tf.Tensor) -> tf.Tensor:
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
            kind = _TYPES.get(storage_type, self._storage)

            def rounded(values: tf.Tensor) -> tf.Tensor:
                return self._rounded(tf.cast(values, tf.float32), round_mode, noisy, en_nanoo)

            def straight_through(values: tf.Tensor) -> Any:
                return tf.cast(rounded(values), kind), lambda upstream: tf.cast(upstream, values.dtype)

            values = tf.convert_to_tensor(inputs)
            through: Any = tf.custom_gradient(straight_through)
            return through(values) if kind.is_floating else self._packed(rounded(values), kind)

    def cast_gfloat_to_native(self, inputs: TensorLike, storage_type: str = "auto") -> tf.Tensor:
        """Unpacks a tensor of the format that `cast_native_to_gfloat` returned; returns `inputs` if it is not packed.

        `storage_type` says what to unpack to: "fp16", "fp32", or "auto" for the smallest type that has all of them.

        Raises:
          RuntimeError: There is no such `storage_type`.
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
        """Returns a function of a tensor: `cast_native_to_gfloat` with these options."""
        return lambda inputs: self.cast_native_to_gfloat(inputs, **options)

    def get_cast_gfloat_to_native_fun(self, storage_type: str = "auto") -> Callable[[TensorLike], tf.Tensor]:
        """Returns a function of a tensor: `cast_gfloat_to_native` with this type."""
        return lambda inputs: self.cast_gfloat_to_native(inputs, storage_type)

    def get_gfloat_storage_dtype(self) -> tf.DType:
        """Returns the type in which numbers are stored."""
        return self._storage

    def get_gfloat_calc_dtype(self) -> tf.DType:
        """Returns the type with which hardware computes them."""
        return self._calc

    def get_gfloat_native_dtype(self) -> tf.DType:
        """Returns the type to which they are unpacked."""
        return self._native

    def get_mantissa_size(self) -> int:
        """Returns the bits of the fraction."""
        return self._man

    def get_exponent_size(self) -> int:
        """Returns the bits of the exponent."""
        return self._exp

    def get_exponent_bias(self) -> int:
        """Returns the bias of the exponent."""
        return self._bias

    def get_en_denorms(self) -> bool:
        """Returns True if there are numbers below the smallest normal one."""
        return self._en_denorm

    def get_en_inf(self) -> bool:
        """Returns True if there are infinity and NaN."""
        return self._en_inf

    def is_packed_float(self) -> bool:
        """Returns True if numbers are stored as integers."""
        return not self._storage.is_floating

    def _rounded(
        self, values: tf.Tensor, mode: str, noisy: Callable[[tf.Tensor], tf.Tensor], en_nanoo: bool
    ) -> tf.Tensor:
        """Rounds to numbers of the format, as float32."""
        magnitude = tf.abs(values)
        lowest = 1 - self._bias
        exponent = tf.clip_by_value(exponent_of(magnitude), lowest, 127)
        step = exponent - self._man
        if not self._en_denorm:
            step = tf.where(magnitude < scaled(tf.ones([]), tf.constant(lowest)), lowest, step)
        fraction = scaled(magnitude, -step)
        is_negative = values < 0
        rounds: dict[str, Callable[[], tf.Tensor]] = {
            "RZ": lambda: tf.floor(fraction),
            "RN": lambda: tf.round(fraction),
            "RA": lambda: tf.floor(fraction + 0.5),
            "RU": lambda: tf.where(is_negative, tf.floor(fraction), tf.math.ceil(fraction)),
            "RD": lambda: tf.where(is_negative, tf.math.ceil(fraction), tf.floor(fraction)),
            "SR": lambda: noisy(fraction),
        }
        result = scaled(rounds[mode](), step)
        largest = float((2 - 2.0**-self._man) * 2.0**self._highest)
        result = tf.where(result > largest, float("nan") if en_nanoo else largest, result)
        is_number = tf.math.is_finite(values)
        if not self._en_inf:
            result = tf.where(is_number, result, 0)
        else:
            of_infinity = float("nan") if en_nanoo else largest
            result = tf.where(is_number, result, tf.where(tf.math.is_nan(values), float("nan"), of_infinity))
        return tf.where(is_negative, -result, result)

    def _packed(self, numbers: tf.Tensor, kind: tf.DType) -> tf.Tensor:
        """Packs numbers of the format as integers: the sign on top, exponent and fraction at the bottom."""
        magnitude = tf.abs(numbers)
        exponent = tf.maximum(exponent_of(magnitude), 1 - self._bias)
        fraction = tf.cast(scaled(magnitude, self._man - exponent), tf.int32)
        code = tf.bitwise.left_shift(exponent + self._bias - 1, self._man) + fraction
        code = tf.where(tf.math.is_nan(numbers), (1 << (self._exp + self._man)) - 1, code)
        return tf.cast(tf.where(numbers < 0, code + int(kind.min), code), kind)
