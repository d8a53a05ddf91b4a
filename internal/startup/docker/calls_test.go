package docker

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// Answers are those that libnetwork's remote drivers give.
func TestCalls(t *testing.T) {
	h := (&Driver{stop: make(chan struct{})}).handler()
	for _, c := range []struct {
		call, body string
		status     int
		answer     string
	}{
		{"Plugin.Activate", "", 200, `{"Implements":["NetworkDriver"]}`},
		{"NetworkDriver.GetCapabilities", "", 200, `{"ConnectivityScope":"local","Scope":"local"}`},
		{"NetworkDriver.EndpointOperInfo", `{"NetworkID":"n","EndpointID":"e"}`, 200, `{"Value":{}}`},
		{"NetworkDriver.DiscoverNew", `{"DiscoveryType":1}`, 200, `{}`},
		{"NetworkDriver.Leave", `{"NetworkID":"n","EndpointID":"e","Unknown":1}`, 200, `{}`},
		{"NetworkDriver.Join", `{"NetworkID":"n","EndpointID":"e"}`, 500, `{"Err":"network n is unknown: remove it with 'docker network rm' and create it again"}`},
		{"NetworkDriver.AllocateNetwork", `{}`, 500, `{"Err":"networks of scon are local to a host: want --scope local"}`},
		{"NetworkDriver.CreateNetwork", `{"NetworkID":`, 400, "unexpected EOF"},
		{"NetworkDriver.Unknown", `{}`, 404, "404 page not found"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/"+c.call, strings.NewReader(c.body)))
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.answer {
			t.Errorf("%s: %d, %s; want %d, %s", c.call, w.Code, got, c.status, c.answer)
		}
	}
}
