"""Whether findings are right: judgements on public training scripts, and the commands that measure by them."""
