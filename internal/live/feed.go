package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// Bounds of what a page may take.
const (
	mostRows     = 200              // of a table in one event
	mostExported = 100_000          // of a table in an export
	patience     = 10 * time.Second // for it to read
)

// Feed answers with looks at the daemon, as Server-Sent Events. All pages share the looks.
//
//	filter=F                           words of a Filter
//	containers_order=O, ..._reverse=1  rows of the containers, ..._from=N on
//	connections_order=O ...            and of the connections
//	export=1                           one event with the rates of an interval and all rows
type Feed struct{ hub *hub }

// NewFeed returns a feed that looks at the daemon in intervals while pages listen, until ctx
// ends.
func NewFeed(ctx context.Context, s Source, interval time.Duration) *Feed {
	return &Feed{newHub(ctx, s, interval)}
}

// window is the part of a table that a page shows.
type window[T any] struct {
	order   Order[T]
	reverse bool
	from    int // first row
}

// windowOf reads a table's window of a request: PREFIXorder, PREFIXreverse, PREFIXfrom.
func windowOf[T any](q url.Values, prefix string, orders []Order[T]) (w window[T], err error) {
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
func (w window[T]) cut(rows []T, total, most int) ([]T, table) {
	from := min(w.from, max(0, len(rows)-1))
	return rows[from:min(from+most, len(rows))], table{Total: total, Matching: len(rows), From: from}
}

// table says which rows an event has of how many.
type table struct {
	Total    int `json:"total"`
	Matching int `json:"matching"` // the filter selects so many
	From     int `json:"from"`     // the first row that the event has
}

// request is what a page wants to see.
type request struct {
	filter      Filter
	containers  window[Container]
	connections window[Connection]
	export      bool
}

func requestOf(q url.Values) (r request, err error) {
	r.export = q.Get("export") == "1"
	if r.filter, err = ParseFilter(q.Get("filter")); err != nil {
		return r, err
	}
	if r.containers, err = windowOf(q, "containers_", ContainerOrders); err != nil {
		return r, err
	}
	r.connections, err = windowOf(q, "connections_", ConnectionOrders)
	return r, err
}

// event is what a page gets of a look.
type event struct {
	View
	Error string `json:"error,omitempty"` // why the daemon did not answer; the rest is empty then
	// Reasons are the regular packets per second by reason, of all containers.
	Reasons map[string]float64 `json:"reasons_per_s"`
	Talk    Talk               `json:"talk"` // of the connections that the filter selects
	// Containers and Connections are rows of the windows.
	ContainerTable  table `json:"container_table"`
	ConnectionTable table `json:"connection_table"`
}

// ServeHTTP answers with an event for each look.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if api.RefuseMethod(w, r, http.MethodGet) {
		return
	}
	want, err := requestOf(r.URL.Query())
	if err != nil {
		api.Refuse(w, &api.Error{Status: http.StatusBadRequest, Message: err.Error()})
		return
	}
	looks, ok := f.hub.listen()
	if !ok {
		api.Refuse(w, &api.Error{Status: http.StatusServiceUnavailable, Message: fmt.Sprintf("%d pages are open already; close one", mostPages)})
		return
	}
	defer f.hub.leave(looks)
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
			if want.export && l.err == nil && l.view.Seconds == 0 {
				continue
			}
			text, err := json.Marshal(l.event(want))
			if err != nil || control.SetWriteDeadline(time.Now().Add(patience)) != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || control.Flush() != nil || want.export {
				return
			}
		}
	}
}

func (l look) event(r request) event {
	if l.err != nil {
		return event{Error: l.err.Error(), View: Between(Snapshot{}, Snapshot{}), Talk: TalkOf(nil)}
	}
	e := event{View: l.view, Reasons: reasons(&l.view)}
	most := mostRows
	if r.export {
		r.containers.from, r.connections.from, most = 0, 0, mostExported
	}
	containers, connections := len(e.Containers), len(e.Connections)
	r.filter.Apply(&e.View)
	e.Talk = TalkOf(e.Connections)
	SortContainers(e.Containers, r.containers.order, r.containers.reverse)
	SortConnections(e.Connections, r.connections.order, r.connections.reverse)
	e.Containers, e.ContainerTable = r.containers.cut(e.Containers, containers, most)
	e.Connections, e.ConnectionTable = r.connections.cut(e.Connections, connections, most)
	return e
}

func reasons(v *View) map[string]float64 {
	sum := make(map[string]float64)
	for i := range v.Containers {
		for reason, n := range v.Containers[i].Reasons {
			sum[reason] += n
		}
	}
	return sum
}
