"""Pictures of channels: feature maps on images, what a run keeps for its report, and figures as PNG and SVG."""
