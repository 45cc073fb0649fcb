"""Scripts of the labelled repositories that are run on made data, and what ``apply --verify`` keeps of each."""
