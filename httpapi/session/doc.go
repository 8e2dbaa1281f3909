// Package session has what signs a browser in: its cookie and when a request may use it, where a
// browser may be sent afterwards, and the page with the form (API.md, "Signing in"). The state
// keeps the sessions (fsm.Session), httpapi has the routes.
package session
