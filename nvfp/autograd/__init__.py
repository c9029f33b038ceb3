"""The tape: recording, the backward pass, gradients of functions. See README.md."""

from nvfp.autograd.custom import custom_vjp as custom_vjp
from nvfp.autograd.functional import grad as grad, value_and_grad as value_and_grad, vjp as vjp
from nvfp.autograd.grad_mode import enable_grad as enable_grad, grad_enabled as grad_enabled, no_grad as no_grad
from nvfp.autograd.gradcheck import check_grads as check_grads
from nvfp.autograd.recompute import checkpoint as checkpoint
from nvfp.autograd.region import (
    after_backward as after_backward,
    collect_after_backward as collect_after_backward,
    in_backward as in_backward,
    on_backward_end as on_backward_end,
)
from nvfp.autograd.tape import Leaf as Leaf, Node as Node, Output as Output, needs_grad as needs_grad, record as record
from nvfp.autograd.walk import backward as backward
