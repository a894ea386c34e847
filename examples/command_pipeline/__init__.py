"""A declarative Spark pipeline over a command log: bronze (records), silver (commands), gold (latencies).

make_log.py          creates a log to run it on
tables/              the tables, each with the function that defines it
spark-pipeline.yml   describes them to Spark
server.py            a Spark Connect server to run it on
run.py               runs it; each run takes what is new
"""
