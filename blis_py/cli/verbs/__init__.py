"""The commands of `blis`, one file per verb."""
