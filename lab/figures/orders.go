package figures

import "time"

// An order is sent to the helper as JSON on its standard input; the verb is its
// first argument. The helper answers on its standard output.

// HTTPOrder is a load of requests at a constant rate ("http").
type HTTPOrder struct {
	URL         string        `json:"url"`
	Rate        float64       `json:"rate"` // requests per second on all connections together
	Connections int           `json:"connections"`
	Duration    time.Duration `json:"duration"`
}

// PublishOrder publishes 64-byte MQTT messages ("publish").
type PublishOrder struct {
	Broker   string        `json:"broker"` // address and port
	Interval time.Duration `json:"interval"`
	Messages int           `json:"messages"`
	WarmUp   int           `json:"warm_up"` // messages before the counted ones, one per millisecond
	Before   int           `json:"before"`  // messages between those and the counted ones, one per interval
}

// SubscribeOrder receives the messages up to the last ("subscribe"). An empty
// report, before the final one, means that the subscriber is ready.
type SubscribeOrder struct {
	Broker string `json:"broker"`
}

// Report is the helper's answer.
type Report struct {
	// Messages counts the answered requests, or the messages sent or received.
	Messages int           `json:"messages"`
	Elapsed  time.Duration `json:"elapsed"`
	// CPU is the processor time of the process during Elapsed.
	CPU time.Duration `json:"cpu"`
	// Mean, P50, P99 and Max of the latencies.
	Mean time.Duration `json:"mean"`
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	Max  time.Duration `json:"max"`
}

// Chart is a bar chart to draw as PNG ("draw"): groups with one bar per series, or
// one stacked bar per group.
type Chart struct {
	File    string   `json:"file"`
	Title   string   `json:"title"`
	X       string   `json:"x"`
	Y       string   `json:"y"`
	Groups  []string `json:"groups"`
	Series  []Series `json:"series"`
	Stacked bool     `json:"stacked"`
}

// Series has a value for each group. Low and High, if set, are the ends of its
// whiskers.
type Series struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
	Low    []float64 `json:"low,omitempty"`
	High   []float64 `json:"high,omitempty"`
}
