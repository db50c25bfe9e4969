"""The demonstration: real flights through the whole of Heliograph, and a balance that must add up.

It uses nothing of the broker's inside: a server process, the official clients, HTTP and Spark, as any application does.
"""
