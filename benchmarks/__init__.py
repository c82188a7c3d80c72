import fixedbert_cli

fixedbert_cli.limit_openmp_spinning()  # as the scripts, before torch is imported, for both sides
