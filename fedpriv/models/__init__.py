"""The networks. A model is a function (shape, classes, *, options) -> nn.Module of ordinary torch layers."""
