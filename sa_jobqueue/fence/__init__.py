"""The fence: how a later write knows that a row is still its own."""
