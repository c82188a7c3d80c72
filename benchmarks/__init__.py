import fixedbert_cli

fixedbert_cli.bound_spinning()  # as the scripts, before torch is imported, for both sides
