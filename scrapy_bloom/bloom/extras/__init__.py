"""Set algebra and files: nothing in ``model``, ``protocol`` or ``client`` imports them."""
