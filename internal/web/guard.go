package web

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/scon-project/scon/internal/api"
)

// Every local user, and every container with the host's network, can connect to a
// listener on the loopback address. So a page shows nothing without the token, which only
// they get who may read the daemon's socket. A cookie would not do: browsers send it to
// all ports of an address, also to a container's. The page keeps the token to itself, and
// puts it into a header.

// newToken returns 128 random bits as text.
func newToken() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // does not fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// policy allows the page what it consists of, and nothing of others.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses requests that come from other sites.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      policy,
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Cross-Origin-Opener-Policy":   "same-origin",
		} {
			w.Header().Set(name, value)
		}
		switch {
		case r.Method != http.MethodGet:
			http.Error(w, "the page only reads: GET", http.StatusMethodNotAllowed)
		case s.token != "" && !api.IsAddress(r.Host):
			http.Error(w, "ask for the page by its address, not by a name", http.StatusForbidden)
		case !sameOrigin(r):
			http.Error(w, "the request comes from another site", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// sameOrigin reports whether a request is not one that another site's page makes. A
// browser says so by one of these headers; a link or a typed address has no origin.
func sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	default: // a link to the page itself shows nothing to the site that has it
		return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/"
	}
}

// locked answers those that have the token. A unix socket has none: who may connect to it
// may read.
func (s *Server) locked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
			http.Error(w, "open the whole address that 'scon web' prints: it ends in a token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
