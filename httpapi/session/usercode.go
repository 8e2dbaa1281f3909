package session

import (
	"crypto/rand"
	"strings"
)

// The letters of codes for people make no words and look like no digits (RFC 8628, 6.1).
const (
	userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	userCodeLen     = 8
)

// NewUserCode returns a new code for people to compare or to type: 8 letters.
func NewUserCode() string {
	var code strings.Builder
	for code.Len() < userCodeLen {
		var b [1]byte
		_, _ = rand.Read(b[:]) // it never fails
		if int(b[0]) < 256/len(userCodeLetters)*len(userCodeLetters) {
			code.WriteByte(userCodeLetters[int(b[0])%len(userCodeLetters)])
		}
	}
	return code.String()
}

// ShowUserCode is a code as people see it: "BCDF-GHJK".
func ShowUserCode(code string) string { return code[:userCodeLen/2] + "-" + code[userCodeLen/2:] }

// ReadUserCode is the code that a person has typed, in any case and with or without its dash.
func ReadUserCode(typed string) string {
	return strings.Map(func(r rune) rune {
		if !strings.ContainsRune(userCodeLetters, r) {
			return -1
		}
		return r
	}, strings.ToUpper(typed))
}
