"""Plain Python that every part stands on: no TensorFlow, no Keras, no NumPy."""
