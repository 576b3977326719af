"""Do the checkpoint, the topics and the targets agree, before a row is read?"""
