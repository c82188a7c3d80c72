"""
Metrics of GLUE and SQuAD, as functions and as `evaluate` modules that need no network:

    import evaluate
    from fixedbert.metrics import glue, squad

    evaluate.load(glue.__file__, "mrpc").compute(predictions=[0, 1], references=[0, 1])
    evaluate.load(squad.__file__, "squad_v2")  # or glue.Glue("mrpc"), squad.Squad("squad_v2")
"""
