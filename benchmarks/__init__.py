import fixedbert_cli

fixedbert_cli.limit_openmp_spinning()  # as in the scripts, before torch is imported
