package web

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
)

// Every local user, and every container with the host's network, can connect to a
// listener on the loopback address. So a page shows nothing without the token, which
// only the one who has started the server reads on its terminal.

// cookie has the token after the first request, so that the address bar does not show it.
const cookie = "scon_token"

// newToken returns 128 random bits as text.
func newToken() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // does not fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// policy allows the page what it consists of, and nothing of others.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses requests that do not come from the page or its address, and those
// without the token.
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
		case !slices.Contains(s.hosts, r.Host):
			// Another name that leads here, as with DNS rebinding.
			http.Error(w, "this is not the address that 'scon web' has printed", http.StatusForbidden)
		case !s.sameOrigin(r):
			http.Error(w, "the request comes from another site", http.StatusForbidden)
		case s.isToken(r.URL.Query().Get("token")) && r.URL.Path == "/":
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: s.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
		case !s.hasCookie(r):
			http.Error(w, "open the whole address that 'scon web' has printed: it ends in a token", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// sameOrigin reports whether a request is not one that another site's page makes. A
// browser says so by one of these headers; a link or a typed address has no origin.
func (s *Server) sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" || !slices.Contains(s.hosts, u.Host) {
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

func (s *Server) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(s.token)) == 1
}

func (s *Server) hasCookie(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && s.isToken(c.Value)
}
