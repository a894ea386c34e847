"""A declarative pipeline of Spark over a command log: bronze (records), silver (commands), gold (latencies).

make_log.py          a log to run it on
tables/              the tables, each with the function that defines it
spark-pipeline.yml   what Spark is told of them
server.py            a Spark Connect server to run it on
run.py               runs it, as often as one likes: each run takes what is new
"""
