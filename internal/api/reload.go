package api

import (
	"net/http"
	"os"
	"time"
)

const reloadPath = "/v1/reload"

// ReloadRequest asks a service to read its settings again.
type ReloadRequest struct {
	Check bool `json:"check"` // only check them
}

// Reload is the answer of a service whose settings are good.
type Reload struct {
	Changed bool `json:"changed"` // they differ from those that the service works with
}

// Reloadable adds to the routes h of a service:
//
//	POST /v1/reload    ReloadRequest -> Reload
//
// reload reads and checks the settings; an error refuses them. Unless they are only to be
// checked, begin is called after the answer; it is nil if the settings are the same.
func Reloadable(h http.Handler, reload func() (begin func(), err error)) http.Handler {
	m := new(Mux)
	m.Handle("/", h)
	m.HandleFunc(reloadPath, func(w http.ResponseWriter, r *http.Request) {
		if RefuseMethod(w, r, http.MethodPost) {
			return
		}
		document, err := decode[ReloadRequest](w, r)
		if err != nil {
			Refuse(w, err)
			return
		}
		begin, err := reload()
		if err != nil {
			Refuse(w, err)
			return
		}
		Reply(w, http.StatusOK, Reload{Changed: begin != nil})
		if begin == nil || document.Check {
			return
		}
		_ = http.NewResponseController(w).Flush()
		go begin() // it may wait for the end of this request
	})
	return m
}

// Reload asks the service to read its settings again, and to replace itself if they have
// changed, or only to check them. It does not wait for the new service.
func (s *Service) Reload(check bool) (r Reload, err error) {
	return r, s.Post(reloadPath, ReloadRequest{check}, &r)
}

// started is when this process began to serve: a service that reloads its settings begins
// again in the same process.
var started = time.Now()

// ThisProcess returns the calling process.
func ThisProcess(version string) Process {
	return Process{PID: os.Getpid(), Version: version, StartedMS: started.UnixMilli()}
}
