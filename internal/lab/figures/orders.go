package figures

import "time"

// What the helper is told to do: one of these on its standard input, in JSON,
// by the verb that is its first argument. It answers on its standard output.

// HTTPOrder is a load of requests at a constant rate ("http").
type HTTPOrder struct {
	URL         string        `json:"url"`
	Rate        float64       `json:"rate"` // requests a second of all connections
	Connections int           `json:"connections"`
	Duration    time.Duration `json:"duration"`
}

// PublishOrder publishes 64-byte MQTT messages ("publish").
type PublishOrder struct {
	Broker   string        `json:"broker"` // address and port
	Interval time.Duration `json:"interval"`
	Messages int           `json:"messages"`
	WarmUp   int           `json:"warm_up"` // messages ahead, one a millisecond
}

// SubscribeOrder receives them, up to the last ("subscribe"). Before the
// report there is an empty one, which says that messages may come.
type SubscribeOrder struct {
	Broker string `json:"broker"`
}

// Report is the helper's answer.
type Report struct {
	// Messages are the requests that were answered, or the messages that were
	// sent or received.
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

// Chart is a bar chart to draw as PNG ("draw"): groups of bars with one bar of
// each series, or one stacked bar for each group.
type Chart struct {
	File    string   `json:"file"`
	Title   string   `json:"title"`
	X       string   `json:"x"`
	Y       string   `json:"y"`
	Groups  []string `json:"groups"`
	Series  []Series `json:"series"`
	Stacked bool     `json:"stacked"`
}

// Series has a value for each group; Low and High, if there, are the ends of
// its whisker.
type Series struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
	Low    []float64 `json:"low,omitempty"`
	High   []float64 `json:"high,omitempty"`
}
