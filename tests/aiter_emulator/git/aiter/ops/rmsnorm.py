"""RMSNorm."""

from torch import Tensor

from tests.aiter_emulator.semantics import norm

from ..jit.core import compile_ops


@compile_ops("module_rmsnorm")
def rms_norm(
    input: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> Tensor:
    return norm.rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm)


@compile_ops("module_rmsnorm")
def rmsnorm2d_fwd(
    input: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> Tensor:
    return norm.rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm)


@compile_ops("module_rmsnorm")
def rmsnorm2d_fwd_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    norm.rms_norm_with_add(
        out, input, residual_in, residual_out, weight, epsilon, gemma_norm, use_model_sensitive_rmsnorm
    )


@compile_ops("module_rmsnorm")
def rmsnorm2d_fwd_with_dynamicquant(
    out: Tensor,
    input: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    norm.rms_norm_rounded(out, input, yscale, weight, epsilon, use_model_sensitive_rmsnorm, group_size, shuffle_scale)


@compile_ops("module_rmsnorm")
def rmsnorm2d_fwd_with_add_dynamicquant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    norm.add_rms_norm_rounded(
        out,
        input,
        residual_in,
        residual_out,
        yscale,
        weight,
        epsilon,
        use_model_sensitive_rmsnorm,
        group_size,
        shuffle_scale,
    )
