-- Run once, when the database's volume is new. The queue's own database is made by POSTGRES_DB.
CREATE DATABASE mlflow;
