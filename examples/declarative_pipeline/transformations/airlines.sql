-- Materialized views are made anew at each run, from all that has come so far.
CREATE MATERIALIZED VIEW airlines AS
SELECT
  carrier,
  count(*) AS flights,
  count(*) - count(dep_delay) AS cancelled,
  round(avg(dep_delay), 2) AS mean_delay
FROM flights
GROUP BY carrier;

CREATE MATERIALIZED VIEW rejections AS
SELECT reason, count(*) AS messages
FROM rejected LATERAL VIEW explode(reasons) AS reason
GROUP BY reason;
