package api

import (
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// HistoryPath is the path of the history.
const HistoryPath = "/v1/history"

// History is the answer to `GET /v1/history?since=TIME&container=C`: packets and bytes of the
// last hour at least, as far back as the daemon's start.
type History struct {
	// Container is the name, ID or device that was asked for; absent for the whole machine.
	Container string `json:"container,omitempty"`
	// Points are in order, without gaps: the latest 120 of a second each, others, and those
	// of times without Conentries, of 10 s.
	Points []Point `json:"points"`
	// Containers are the sums of each container's points, those that are gone included.
	Containers []HistoryContainer `json:"containers"`
	LeftOut    int                `json:"left_out"` // containers without a history of their own, as there are too many
}

// Traffic is what went express and regular in a time.
type Traffic struct {
	ExpressPackets uint64 `json:"express_packets"` // that went express
	ExpressBytes   uint64 `json:"express_bytes"`   // bytes of these, from the IP header on
	RegularPackets uint64 `json:"regular_packets"` // that went regular, without those at the uplinks
}

// Point is the traffic of a time that ends at At.
type Point struct {
	At      time.Time `json:"at"`      // its end
	Seconds float64   `json:"seconds"` // its length
	Traffic           // in this time
}

// HistoryContainer is a container's traffic over its points.
type HistoryContainer struct {
	Name    string  `json:"name"`    // as the runtime names it; the device's name if it is not known
	ID      string  `json:"id"`      // the runtime's identifier, empty if it is not known
	Dev     string  `json:"dev"`     // its port on the host
	Gone    bool    `json:"gone"`    // the container is gone
	Seconds float64 `json:"seconds"` // length of its points together
	Traffic         // in this time
}

// Plus returns the sum of both.
func (t Traffic) Plus(o Traffic) Traffic {
	return Traffic{t.ExpressPackets + o.ExpressPackets, t.ExpressBytes + o.ExpressBytes, t.RegularPackets + o.RegularPackets}
}

// Sum returns the traffic of all points, and how long they are together.
func (h *History) Sum() (seconds float64, sum Traffic) {
	for _, p := range h.Points {
		seconds += p.Seconds
		sum = sum.Plus(p.Traffic)
	}
	return seconds, sum
}

// HistoryFor answers a request's parameters: container, and since in the form of RFC 3339.
func HistoryFor(b Reader, q url.Values) (h History, err error) {
	var since time.Time
	if text := q.Get("since"); text != "" {
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return h, &Error{http.StatusBadRequest, fmt.Sprintf("since is %q: want a time such as 2006-01-02T15:04:05Z", text)}
		}
	}
	return b.History(q.Get("container"), since)
}

// History returns the points that end after a time, those of one container or, without
// one, of the machine.
func (c *Client) History(container string, since time.Time) (h History, err error) {
	return h, c.Get(HistoryPath, url.Values{"container": {container}, "since": {since.UTC().Format(time.RFC3339Nano)}}, &h)
}
