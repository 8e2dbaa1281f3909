package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
)

// Kinds of failure, for errors.Is.
var (
	// ErrUnreachable means that the server did not respond, or not in time. A retry may help.
	ErrUnreachable = errors.New("the agent server can't be reached")
	// ErrUnavailable means that the server responded 5xx or 429. A retry may help.
	ErrUnavailable = errors.New("the agent server failed")
	// ErrUnauthorized means that the server rejected the key, or a call without one (401, 403).
	ErrUnauthorized = errors.New("the agent server refused the key")
	// ErrNotOurs means that the server accepts calls without a key, so its identity is unproven.
	ErrNotOurs = errors.New("the server is not the sandbox's agent server")
	// ErrUnproven means that the server did not prove that it has the key, and the key was not sent.
	ErrUnproven = errors.New("the server did not prove that it is the sandbox's")
	// ErrRefused means that the server refused the request (other 4xx). A retry does not help.
	ErrRefused = errors.New("the agent server refused the request")
	// ErrBadAnswer means that the response does not follow the protocol.
	ErrBadAnswer = errors.New("the agent server's answer can't be understood")
	// ErrTooLarge means that the response is larger than it may be. It is an ErrBadAnswer too.
	ErrTooLarge = fmt.Errorf("%w: it is too large", ErrBadAnswer)
)

// Error is a failed call. Its text contains neither a key nor a part of the request.
type Error struct {
	// Op is the call that failed.
	Op string
	// Kind is one of this package's Err values.
	Kind error
	// Status is the HTTP status, 0 without a response.
	Status int
	// Detail is the server's error text, truncated and without echoed input. Without a response it
	// is the error of the transfer.
	Detail string
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Op + ": " + e.Kind.Error()
	if e.Status != 0 {
		s += fmt.Sprintf(" (status %d)", e.Status)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

const maxDetail = 500

func statusError(op string, status int, body []byte) *Error {
	e := &Error{Op: op, Status: status, Detail: detailOf(body)}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.Kind = ErrUnauthorized
	case status == http.StatusTooManyRequests, status >= 500:
		e.Kind = ErrUnavailable
	case status >= 400:
		e.Kind = ErrRefused
	default:
		e.Kind = ErrBadAnswer
	}
	return e
}

// detailOf extracts the text from the agent server's error formats: {"detail":"text"},
// {"detail":[{loc,msg}]}, {"detail":{"message":…}}. It omits "input" and "ctx" of a validation
// error, which may echo the request.
func detailOf(body []byte) string {
	var shape struct {
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &shape) != nil || len(shape.Detail) == 0 {
		return ""
	}
	var text string
	if json.Unmarshal(shape.Detail, &text) == nil {
		return clip(text)
	}
	var list []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(shape.Detail, &list) == nil {
		parts := make([]string, 0, len(list))
		for _, v := range list {
			loc := make([]string, len(v.Loc))
			for i, l := range v.Loc {
				loc[i] = fmt.Sprint(l)
			}
			parts = append(parts, strings.Join(loc, ".")+": "+v.Msg)
		}
		return clip(strings.Join(parts, "; "))
	}
	var obj struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(shape.Detail, &obj) == nil {
		return clip(obj.Message)
	}
	return ""
}

// clip shortens a text of the server and makes it one line of valid UTF-8.
func clip(s string) string {
	return decode.Truncate(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")), maxDetail)
}
