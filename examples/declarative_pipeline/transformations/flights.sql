-- Each message as a flight, and which rules it breaks.
CREATE TEMPORARY VIEW checked AS
SELECT
  message_id, publish_time, data, flight,
  array_compact(array(
    IF(flight IS NULL OR flight.carrier IS NULL, 'no flight in JSON', NULL),
    IF(length(flight.carrier) != 2, 'no such airline', NULL),
    IF(flight.origin NOT IN ('EWR', 'JFK', 'LGA'), 'not from New York', NULL),
    IF(flight.hour NOT BETWEEN 0 AND 23, 'no such hour', NULL)
  )) AS reasons
FROM (
  SELECT
    message_id, publish_time, data,
    from_json(
      CAST(data AS STRING),
      'carrier STRING, flight INT, origin STRING, dest STRING, hour INT, dep_delay DOUBLE, distance INT'
    ) AS flight
  FROM STREAM messages
);

-- Every flight that breaks none.
CREATE STREAMING TABLE flights AS
SELECT message_id, publish_time, flight.* FROM STREAM checked WHERE size(reasons) = 0;

-- Every other message, as it was published, and why it is here.
CREATE STREAMING TABLE rejected AS
SELECT message_id, publish_time, reasons, data FROM STREAM checked WHERE size(reasons) > 0;
