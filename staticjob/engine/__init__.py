"""The static-shape engine: fixed buffers, one kernel selection (and on a GPU one graph) per shape.

    engine = StaticEngine(model_dir, job, shapes)     loads weights, allocates buffers
    engine.run(shape, ids, lengths, boundaries)       one rectangle in, one HeadResult out

`StaticDecoder` does the same for rows that grow. A module whose first line says so loads no torch.
"""
