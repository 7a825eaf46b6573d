"""Fused softmax and LayerNorm kernels that torch.compile and torch.export put into any model."""
