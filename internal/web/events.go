package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/scon-project/scon/internal/live"
)

// window is the part of a table that a page shows.
type window[T any] struct {
	order   live.Order[T]
	reverse bool
	from    int // first row
}

// windowOf reads a table's window of a request: PREFIXorder, PREFIXreverse, PREFIXfrom.
func windowOf[T any](q url.Values, prefix string, orders []live.Order[T]) (w window[T], err error) {
	w.order, w.reverse = orders[0], q.Get(prefix+"reverse") == "1"
	if name := q.Get(prefix + "order"); name != "" {
		at := -1
		for i := range orders {
			if orders[i].Name == name {
				at = i
			}
		}
		if at < 0 {
			return w, fmt.Errorf("%sorder is %q: there is no such order", prefix, name)
		}
		w.order = orders[at]
	}
	if text := q.Get(prefix + "from"); text != "" {
		if w.from, err = strconv.Atoi(text); err != nil || w.from < 0 {
			return w, fmt.Errorf("%sfrom is %q: want a number of a row", prefix, text)
		}
	}
	return w, nil
}

// cut returns the window's rows of sorted ones, and what there is.
func (w window[T]) cut(rows []T, total int) ([]T, table) {
	from := min(w.from, max(0, len(rows)-1))
	return rows[from:min(from+mostRows, len(rows))], table{Total: total, Matching: len(rows), From: from}
}

// table says which rows an event has of how many.
type table struct {
	Total    int `json:"total"`
	Matching int `json:"matching"` // the filter selects so many
	From     int `json:"from"`     // the first row that the event has
}

// request is what a page wants to see.
type request struct {
	filter      live.Filter
	containers  window[live.Container]
	connections window[live.Connection]
}

func requestOf(q url.Values) (r request, err error) {
	if r.filter, err = live.ParseFilter(q.Get("filter")); err != nil {
		return r, err
	}
	if r.containers, err = windowOf(q, "containers_", live.ContainerOrders); err != nil {
		return r, err
	}
	r.connections, err = windowOf(q, "connections_", live.ConnectionOrders)
	return r, err
}

// event is what a page gets of a look.
type event struct {
	live.View
	Error string `json:"error,omitempty"` // why the daemon did not answer; the rest is empty then
	// Reasons are the regular packets per second by reason, of all containers and uplinks.
	Reasons map[string]float64 `json:"reasons_per_s"`
	// Containers and Connections are rows of the windows.
	ContainerTable  table `json:"container_table"`
	ConnectionTable table `json:"connection_table"`
}

// events answers with Server-Sent Events, an event for each look.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	want, err := requestOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	looks, ok := s.hub.listen()
	if !ok {
		http.Error(w, fmt.Sprintf("%d pages are open already; close one", mostPages), http.StatusServiceUnavailable)
		return
	}
	defer s.hub.leave(looks)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Time{}) != nil { // the stream lasts
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case l := <-looks:
			text, err := json.Marshal(l.event(want))
			if err != nil || control.SetWriteDeadline(time.Now().Add(patience)) != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || control.Flush() != nil {
				return
			}
		}
	}
}

func (l look) event(r request) event {
	if l.err != nil {
		return event{Error: l.err.Error(), View: live.Between(live.Snapshot{}, live.Snapshot{})}
	}
	e := event{View: l.view, Reasons: reasons(&l.view)}
	containers, connections := len(e.Containers), len(e.Connections)
	r.filter.Apply(&e.View)
	live.SortContainers(e.Containers, r.containers.order, r.containers.reverse)
	live.SortConnections(e.Connections, r.connections.order, r.connections.reverse)
	e.Containers, e.ContainerTable = r.containers.cut(e.Containers, containers)
	e.Connections, e.ConnectionTable = r.connections.cut(e.Connections, connections)
	return e
}

func reasons(v *live.View) map[string]float64 {
	sum := make(map[string]float64)
	add := func(reasons map[string]float64) {
		for reason, n := range reasons {
			sum[reason] += n
		}
	}
	add(v.Uplinks)
	for i := range v.Containers {
		add(v.Containers[i].Reasons)
	}
	return sum
}
