package discover

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// answer makes up a container engine that gives one answer for one container.
func (n *named) answer(socket, id string, answer []byte) {
	n.t.Helper()
	n.answers(socket, map[string]string{"containers/" + id + "/json": string(answer)})
}

// answers makes up a container engine that gives one answer for each path.
func (n *named) answers(socket string, all map[string]string) {
	n.t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		n.t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, answer := range all {
		mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	n.t.Cleanup(func() { server.Close() })
}

// The origin is that of Compose, Docker's or podman-compose's; what a container's maker
// wrote there has a bound and no control characters.
func TestOrigin(t *testing.T) {
	long := strings.Repeat("é", mostText)
	for name, tc := range map[string]struct {
		image  string
		labels map[string]string
		want   Origin
	}{
		"no Compose":     {"nginx:1", nil, Origin{Image: "nginx:1"}},
		"Docker Compose": {"nginx:1", map[string]string{composeProject: "shop", composeService: "web"}, Origin{"nginx:1", "shop", "web"}},
		"podman-compose": {"nginx:1", map[string]string{podmanProject: "shop", podmanService: "web"}, Origin{"nginx:1", "shop", "web"}},
		"control characters": {
			"ng\x1b[2Jinx\n", map[string]string{composeProject: "\u202eshop\x00", composeService: "web\u009b\xff"},
			Origin{"ng[2Jinx", "shop", "web"},
		},
		"long":                   {long, map[string]string{composeService: long}, Origin{Image: long[:mostText], Service: long[:mostText]}},
		"cut within a character": {"x" + long, nil, Origin{Image: "x" + long[:mostText-2]}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNamed(t)
			n.process(42, n.d.c, "/docker/"+idA)
			answer, err := json.Marshal(map[string]any{"Name": "/web", "Config": map[string]any{"Image": tc.image, "Labels": tc.labels}})
			if err != nil {
				t.Fatal(err)
			}
			n.answer(n.namer.at.docker, idA, answer)
			if got := n.identify().Origin; got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// An answer that is too long identifies no container.
func TestLongAnswer(t *testing.T) {
	n := newNamed(t)
	n.process(42, n.d.c, "/docker/"+idA)
	n.answer(n.namer.at.docker, idA, []byte(`{"Name": "/web", "Config": {"Image": "`+strings.Repeat("x", mostAnswer)+`"}}`))
	if got := n.identify(); !got.Unknown || got.Image != "" {
		t.Errorf("got %+v", got.Origin)
	}
}
