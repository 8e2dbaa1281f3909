// Package legacy translates requests of upstream's older interface (V0) into V1's, and words its
// responses. Package httpapi has the handlers.
package legacy
