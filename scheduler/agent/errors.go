package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// The kinds of failure, for errors.Is.
var (
	// ErrUnreachable: nothing answered, or not in time. Trying again may
	// help.
	ErrUnreachable = errors.New("the agent server can't be reached")
	// ErrUnavailable: the server answered 5xx or 429. Trying again may help.
	ErrUnavailable = errors.New("the agent server failed")
	// ErrUnauthorized: the server refused the key, or the missing key.
	ErrUnauthorized = errors.New("the agent server refused the key")
	// ErrNotOurs: the server lets callers in without a key, so it proves
	// nothing.
	ErrNotOurs = errors.New("the server is not the sandbox's agent server")
	// ErrRefused: the server refused the request (4xx); the same request will
	// be refused again.
	ErrRefused = errors.New("the agent server refused the request")
	// ErrBadAnswer: what came back is not what the protocol says.
	ErrBadAnswer = errors.New("the agent server's answer can't be understood")
)

// Error is a failed call. Its text holds no key and no part of the request.
type Error struct {
	// Op says which call failed.
	Op string
	// Kind is one of the Err values of this package.
	Kind error
	// Status is the HTTP status, 0 when there was none.
	Status int
	// Detail says more: the server's own words, bounded, without the inputs
	// it may echo.
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

// Unwrap gives the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Temporary reports whether the same call may work later.
func Temporary(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrUnavailable)
}

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

// detailOf reads the agent server's error shapes: {"detail":"text"},
// {"detail":[{loc,msg}]}, {"detail":{"message":…}}. The members "input" and
// "ctx" of a validation error may echo what was sent and are left out.
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

// clip bounds a text from outside and keeps it valid UTF-8 on one line.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= maxDetail {
		return s
	}
	cut := maxDetail
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
