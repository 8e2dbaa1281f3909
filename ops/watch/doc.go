// Package watch makes the alerts, the recording rules and the Grafana dashboards of a Bivouac
// installation from one description in Go. ops/watch/generate writes them to ops/alerts and
// ops/dashboards; a test fails when the files differ from the description.
//
// Rules have a time scale. At 1 they are what an operator installs. At 60 every window, delay and
// age is a sixtieth, so that a drill sees an alert fire within seconds of its cause.
package watch
