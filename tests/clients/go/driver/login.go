package driver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"
)

// Login is how a client shows who it is; drivers/login.py is the other side.  Fields of other mechanisms are empty.
type Login struct {
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	IsToken     bool   `json:"is_token"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	AccessToken string `json:"access_token"`
	Keytab      string `json:"keytab"`
	Krb5Conf    string `json:"krb5_conf"`
	Service     string `json:"service"`
}

// TLS is nil for a protocol without it.
func (l Login) TLS() (*tls.Config, error) {
	if !strings.HasSuffix(l.Protocol, "SSL") {
		return nil, nil
	}
	pem, err := os.ReadFile(l.Authority)
	if err != nil {
		return nil, err
	}
	made := &tls.Config{RootCAs: x509.NewCertPool()}
	if !made.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", l.Authority)
	}
	if l.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
		if err != nil {
			return nil, err
		}
		made.Certificates = []tls.Certificate{pair}
	}
	return made, nil
}

// ReadAccessToken returns the token that the file has now.
func (l Login) ReadAccessToken() (string, error) {
	token, err := os.ReadFile(l.AccessToken)
	return strings.TrimSpace(string(token)), err
}

// NameAndRealm are the parts of a Kerberos principal.
func (l Login) NameAndRealm() (string, string) {
	name, realm, _ := strings.Cut(l.User, "@")
	return name, realm
}

// Kerberos is a client of the KDC that has not logged in yet.
func (l Login) Kerberos() (*client.Client, error) {
	conf, err := config.Load(l.Krb5Conf)
	if err != nil {
		return nil, err
	}
	keys, err := keytab.Load(l.Keytab)
	if err != nil {
		return nil, err
	}
	name, realm := l.NameAndRealm()
	return client.NewWithKeytab(name, realm, keys, conf, client.DisablePAFXFAST(true)), nil
}

// StreamPause is between two records of a stream.
const StreamPause = 50 * time.Millisecond

// Stream sends one record after the other for this long, with its number as value, and returns how many were acknowledged.
func Stream(seconds float64, send func(value string) error) (int, error) {
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	sent := 0
	for time.Now().Before(end) {
		if err := send(strconv.Itoa(sent)); err != nil {
			return sent, fmt.Errorf("after %d records: %w", sent, err)
		}
		sent++
		time.Sleep(StreamPause)
	}
	return sent, nil
}
