"""Decoders that have no file here: transformers' layers, over our paged attention, scheduler, sampler and loader.

transformers 5 hands queries, keys and values of each attention layer to a function that is registered by name
(https://huggingface.co/docs/transformers/attention_interface). Ours gives them to a paged layer. Torch and
transformers are imported only once such a model is built.
"""
