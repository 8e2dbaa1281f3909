package httpapi

import (
	"net/http"
	"strconv"

	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// call is a request with the server that serves it.
type call struct {
	request.Call
	server *Server
}

// dispatch runs one route: authentication, body, handler. It writes the outcome.
func (s *Server) dispatch(found *route, params httprouter.Params, w http.ResponseWriter, r *http.Request) {
	ex := request.InfoOf(r.Context())
	ex.Route = found.path
	if found.direct && isForwarded(r) {
		response.FailureOf(response.NotFound(), response.FormatDetail, "").Write(w)
		return
	}
	if found.serve != nil {
		found.serve(s, w, r)
		return
	}
	c := &call{Call: request.New(s.calls, r, params), server: s}
	if found.access == operator {
		c.Restrict(&found.members)
	}
	defer c.Close()
	out, err := s.run(found, c, ex, w)
	if c.Index > 0 {
		w.Header().Set(response.HeaderIndex, strconv.FormatUint(c.Index, 10))
	}
	c.logAct(found, err)
	if err != nil {
		ex.Err = err
		c.noteRefused(ex, err)
		response.FailureOf(err, found.format, found.internal).Write(w)
		return
	}
	if out.Stream == nil {
		c.TurnToAnswer()
	}
	ex.Err = out.Write(w, c.LeaveSlot)
}

func (s *Server) run(found *route, c *call, ex *proxy.RequestInfo, w http.ResponseWriter) (response.Response, error) {
	if found.access == user || found.access == operator {
		who, err := s.keys.authenticate(c.Request.Context(), c.Request)
		if err != nil {
			return response.Response{}, err
		}
		c.Caller, ex.User = who, who.User
		if found.access == operator && !who.Operator {
			ex.Refused = refusedUser
			return response.Response{}, response.Error(http.StatusForbidden, "Forbidden")
		}
		s.lastRequest.Store(c.Now.UnixNano())
		if err := c.Enter(s.admission, who.User); err != nil {
			return response.Response{}, err
		}
		if err := s.admit(c.Request.Context(), limits.Client{User: who.User}); err != nil {
			return response.Response{}, err
		}
	}
	if found.access == sandboxKey && found.method == http.MethodPost {
		if err := s.enterSandbox(found, c); err != nil {
			return response.Response{}, err
		}
	}
	limit := max(s.live.Load().MaxBodyBytes, found.most)
	if found.access == signIn {
		limit = min(limit, limits.FreeBytes) // anyone may send it
	}
	if err := c.Read(w, limit, found.upload); err != nil {
		return response.Response{}, err
	}
	if found.access == operator && len(found.members) == 0 && len(c.Body) > 0 {
		c.Object()
		if err := c.Check(); err != nil {
			return response.Response{}, err
		}
	}
	out, err := found.handle(s, c)
	if found.access == sandboxKey {
		ex.User = c.Caller.User
	}
	return out, err
}

// sandboxesOf stands before a user's id where the calls of the user's sandboxes have their place: no sandbox
// takes the place of its user, who may want to delete it.
const sandboxesOf = "sandboxes of "

// enterSandbox admits the call of a sandbox before its body is read.
func (s *Server) enterSandbox(found *route, c *call) error {
	row, _, err := c.presentedSandbox()
	if err != nil {
		return err
	}
	if found.most > 0 {
		if err := s.admitEvents(row.ID, c.Request.ContentLength); err != nil {
			return err
		}
	}
	return c.Enter(s.admission, sandboxesOf+row.UserID)
}

// sandboxOfPath returns the caller's sandbox of the path, with the view that it is in.
func (c *call) sandboxOfPath() (*fsm.View, *fsm.Sandbox, error) {
	v, err := c.View()
	if err != nil {
		return nil, nil, err
	}
	row := v.Sandbox(c.Caller.User, c.Params.ByName("sandbox_id"))
	if row == nil {
		return nil, nil, response.NotFound()
	}
	return v, row, nil
}
