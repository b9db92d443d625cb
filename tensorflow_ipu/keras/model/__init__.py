"""The methods, programs and executions of Keras models that are made in a strategy's scope."""
