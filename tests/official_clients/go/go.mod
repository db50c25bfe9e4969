module heliograph/officialclients

go 1.26

require cloud.google.com/go/pubsub/v2 v2.9.0
